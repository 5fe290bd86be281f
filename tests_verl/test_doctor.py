"""doctor --verl in the environment it is about."""

from sage_rlvr.doctor.verl import check_verl


def test_a_whole_environment_is_proved():
    checks = {check.name: check for check in check_verl()}
    assert {name: check.ok for name, check in checks.items()} == dict.fromkeys(
        ("verl", "TransferQueue", "entry point", "plug-ins allowed", "plug-in active", "anchor shaped"), True
    )
    assert "0.03764" in checks["anchor shaped"].found  # 1.3 − log 1.3 − 1


def test_a_plugin_shut_out_is_found_out(monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "others")
    checks = {check.name: check for check in check_verl()}
    assert checks["plug-ins allowed"].ok is False
    assert checks["plug-in active"].ok is False
    assert "not sage_sync" in checks["plug-in active"].found
