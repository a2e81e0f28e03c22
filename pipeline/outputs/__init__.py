"""What a job leaves: the formats that connect those who write outputs, who store them, and who read them."""
