"""Who proposes: drafters answer frontiers with children and record every step."""
