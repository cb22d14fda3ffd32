"""The selection rule's database: evidence and candidates."""
