"""What autofit answers, as data: Python objects and JSON documents."""
