"""Views for people: tables of results, the live view, status, logs, reasons, pages."""
