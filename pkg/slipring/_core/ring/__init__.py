"""The ring in shared memory, and what every process and thread of a loader needs to know of itself."""
