"""What the documents, the example and the package say is so."""
