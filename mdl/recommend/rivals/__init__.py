"""Other ways to recommend, which DCCL is measured against."""
