"""The picture of the demo's page that the README shows: the first screen of a finished report, as docs/img/report.webp.

python benchmarks/report_picture.py runs/demo/report.html    # needs Chromium, and Pillow, which Matplotlib brings
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

OUT, SIZE = Path(__file__).resolve().parents[1] / "docs/img/report.webp", (1340, 860)
# in a copy of the page, without its policy: Chromium shoots a page that was scrolled empty, so the other parts are hidden
HIDDEN = "<style>section:not(#first) {display: none !important}</style>"


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    with TemporaryDirectory() as work:
        shot, flags = Path(work, "shot.png"), ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        alone, size = Path(work, "page.html"), ",".join(map(str, SIZE))
        text = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page.read_text(encoding="utf-8"))
        alone.write_text(text.replace("</head>", HIDDEN + "</head>", 1), encoding="utf-8")
        more = [f"--window-size={size}", "--virtual-time-budget=8000", f"--screenshot={shot}"]
        subprocess.run(["chromium", *flags, *more, alone.as_uri()], check=True, capture_output=True)
        Image.open(shot).convert("RGB").save(OUT, quality=80, method=6)
    print(f"{OUT}: {OUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
