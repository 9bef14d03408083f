"""How training is going, on stderr: a bar that moves on a terminal, plain lines anywhere else."""
import sys
import time

from .console import note, on_terminal

LINE_EVERY = 10.0  # seconds between plain lines


class Bar:
    """A tqdm bar, or None where stderr is no terminal, in `bar`; notices that do not tear it."""
    bar = None

    def begin(self, **options):
        """Draw the bar, on a terminal."""
        if on_terminal():
            from tqdm import tqdm
            self.bar = tqdm(file=sys.stderr, dynamic_ncols=True, leave=False, **options)

    def say(self, text):
        """A notice that does not tear the bar."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            note(text)

    def close(self):
        if self.bar is not None:
            self.bar.close()


class Reporter(Bar):
    """Call it with a `Progress` after each step, and `close()` it. `title` says which model is being trained."""

    def __init__(self, title="training"):
        self.title, self.last = title, -LINE_EVERY
        self.begin(total=1000, desc=title, bar_format="{percentage:3.0f}%|{bar}| {desc}")

    def __call__(self, p):
        if self.bar is not None:
            try:
                self._move(p)
                return
            except OSError:  # the terminal has gone; training goes on
                self.bar = None
        if p.validation is not None or time.monotonic() - self.last > LINE_EVERY:
            self.last = time.monotonic()
            note(f"{self.title}: {self._text(p)}{self._validation(p)}")

    def _move(self, p):
        if p.validation is not None:
            self.bar.write(f"{self.title}: {self._text(p)}{self._validation(p)}", file=sys.stderr)
        self.bar.set_description_str(f"{self.title}: {self._text(p)}", refresh=False)
        self.bar.update(int(1000 * p.done) - self.bar.n)

    @staticmethod
    def _text(p):
        steps = f"step {p.step:,}" + (f"/{p.steps:,}" if p.steps else "")
        pace = f"  {p.tokens_per_second:,.0f} targets/s" if p.tokens_per_second else ""
        return f"{steps}  loss {p.loss:.3f}{pace}" + ("" if p.left is None else f"  {duration(p.left)} left")

    @staticmethod
    def _validation(p):
        return "" if p.validation is None else f"  validation {p.validation:.4f}{' (best)' if p.best else ''}"


def duration(seconds):
    """0:07, 12:40 or 3:05:00."""
    seconds = round(seconds)
    minutes, s = divmod(seconds, 60)
    return f"{minutes}:{s:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{s:02d}"
