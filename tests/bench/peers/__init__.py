"""What others take for the work that Sandpod is measured at, on the same machine in the same minutes.

Each module measures one peer with what that peer itself offers: `containers` the commands of Docker and kubectl,
`llm_sandbox` that library in an environment of its own, `agent_sandbox` the claims of that project's controller.
"""
