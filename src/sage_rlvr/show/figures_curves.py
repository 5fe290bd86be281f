"""What was logged over training, drawn."""

from pathlib import Path

from sage_rlvr.show.style import Figure, legend, line, panels, save, whole_steps

Curves = dict[str, dict[str, list[list[float]]]]  # variant → what was logged → [step, mean over the finished seeds]


def draw_curves(path: str | Path, curves: Curves, names: dict[str, str]) -> Figure:
    """A panel for each of ``names`` (what was logged → its title), a line a variant."""
    with panels(len(names), width=5.6) as (figure, axes):
        for ax, (name, title) in zip(axes.flat, names.items()):
            for i, (variant, logged) in enumerate(curves.items()):
                if name in logged:
                    steps, values = zip(*logged[name])
                    ax.plot(steps, values, label=variant, markevery=max(1, len(steps) // 6), **line(i))
            whole_steps(ax.xaxis)
            ax.set_title(title)
        legend(figure, axes)
        told = f"{' and '.join(names.values())} over training, means over seeds: {', '.join(curves)}."
        return save(figure, path, told)
