"""The language: its types, their structure and sizes, and advice on mistakes in it."""
