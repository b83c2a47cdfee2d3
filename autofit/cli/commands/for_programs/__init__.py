"""Commands for programs: schemas of documents, tools for assistants, requests that schedulers read."""
