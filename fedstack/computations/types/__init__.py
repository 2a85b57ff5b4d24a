"""The types of Federated Language, their structure and sizes, and advice on mistakes in the use of the language."""
