"""What is known of jobs and their state from files alone, while they run and afterwards."""
