"""Users who sign in at an OpenID Connect provider: with tokens that they bring, or through the gateway.

What a provider publishes and answers, whose its tokens are, and what sign-ins through the gateways leave. Nothing here
knows where that is kept.
"""
