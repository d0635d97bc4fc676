"""A page served by a process of its own, which says a word whenever it is told to, and when it did.

`python -m tests.integration.speaking_page` prints the address, then for each line of its stdin the wall clock's time at
which the line became what the mesh does.
"""

import subprocess
import sys
import time

from tests.integration.web_server import Words, a_mesh, served

# When a word stands in the document, by the wall clock, which all processes of a machine share.
_WATCH = """window.seen = new Promise((done) => {
    const look = new MutationObserver(() => {
        if (!document.querySelector("#mesh").innerText.includes(arguments[0])) return;
        look.disconnect();
        done(Date.now());
    });
    look.observe(document.querySelector("#mesh"), { subtree: true, childList: true, characterData: true });
})"""


class Speaking:
    """The process; `url` is its page. Use as a context manager."""

    def __enter__(self):
        words = [sys.executable, "-m", "tests.integration.speaking_page"]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._child.stdout.readline().strip()
        return self

    def __exit__(self, *_):
        self._child.stdin.close()
        self._child.wait(30)
        self._child.stdout.close()

    def say_and_see(self, text, browser):
        """Seconds from the word to the document of the page that the browser shows."""
        browser.run(_WATCH, text)
        self._child.stdin.write(text + "\n")
        self._child.stdin.flush()
        said = float(self._child.stdout.readline())
        return browser.driver.execute_async_script("window.seen.then(arguments[0])") / 1e3 - said


def main():
    words = Words(a_mesh(30))
    with served(words) as opened:
        print(opened.url, flush=True)
        for line in sys.stdin:
            said = time.time()
            words.say(problem=line.strip())
            print(said, flush=True)


if __name__ == "__main__":
    main()
