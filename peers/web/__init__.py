"""The page about a mesh, and its interface for programs: reads what observers are told, changes nothing."""
