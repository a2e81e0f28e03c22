"""The devices of this machine, seen through NVML; torch is never imported here."""
