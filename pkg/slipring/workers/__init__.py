"""Worker processes and threads: started, fed, watched, replaced and stopped."""
