"""Module states, blobs and the manifest: kept, served, fetched."""
