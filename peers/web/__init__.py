"""The page about a mesh, and what programs ask for: reads what observers are told, changes nothing."""
