"""The commands of autofit's command line: each parses options, calls the backend and renders the answer."""
