"""What is printed on a terminal; nothing else imports rich."""
