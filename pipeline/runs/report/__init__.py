"""What people look at: tables of results, the live view, status, logs, reasons, pages."""
