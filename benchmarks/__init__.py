"""What is measured, and how: each script is called by its path; what they share is imported by full name."""
