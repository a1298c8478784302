"""The tools for packages over sandboxes in memory, which can't install anything: who sees what."""

from support.gateway.fake_gateway import Caller, Place


async def test_installation_is_its_callers_alone(place: Place, alice: Caller) -> None:
    begun = await alice.call("install_packages", packages=["greet"], wait=0)
    assert begun["status"] == "installing"
    async with place.connect("bob") as bob:
        assert (await bob.call("get_installation", installation=begun["installation"]))["error"] == "not_found"
        assert (await bob.call("install_packages", packages=["x"], sandbox=begun["sandbox"]))["error"] == (
            "session_not_found"
        )
