"""The documentation as a site: every link leads somewhere, and every page is in its list."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_builds_without_a_dead_link(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert (tmp_path / "site" / "how-to" / "publish" / "index.html").is_file()
    external = [page for page in (tmp_path / "site").rglob("*.html") if "https://fonts." in page.read_text()]
    assert not external, "a page loads something from elsewhere"
