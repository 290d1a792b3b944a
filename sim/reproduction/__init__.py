"""The paper's tables out of one command, the published figure beside ours and what to make of the difference."""
