"""What guards every request: the name it was sent to, who sends it, and that a form is ours."""
