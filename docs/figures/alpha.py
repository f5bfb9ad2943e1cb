"""Draw docs/img/alpha.svg, the strength of MDA's pull towards x_0: python docs/figures/alpha.py."""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from dualavg.theory import alpha, alpha_asymptote, alpha_section2

OUT = Path(__file__).parent.parent / "img" / "alpha.svg"
INK, MUTED = "#1f2328", "#6e7781"
COLOURS = {0.1: "#bc4c00", 1.0: "#0550ae", 10.0: "#1a7f37"}
DASHED = {"color": INK, "lw": 0.9, "ls": (0, (4, 3))}
STYLE = Path(__file__).with_name("dualavg.mplstyle")


def strength(ax: Axes) -> None:
    """Plot alpha_k against k + 1 for three step sizes, and its first-order approximation."""
    ks = [*range(10), *(10**i - 1 for i in range(2, 6))]
    x = [k + 1 for k in ks]
    for lr, colour in COLOURS.items():
        ax.loglog(x, [alpha(k, lr) for k in ks], color=colour, lw=1.8)
        ax.loglog(x, [alpha_asymptote(k, lr) for k in ks], **DASHED)
        end = (x[-1], alpha(ks[-1], lr))
        ax.annotate(rf"$\eta = {lr:g}$", end, (5, 0), textcoords="offset points", va="center", color=colour)
    line = {"arrowstyle": "-", "color": MUTED, "lw": 0.7}
    point = (300, alpha_asymptote(299, 0.1))
    ax.annotate(r"$1 / (2 \eta (k+1))$", point, (14, 16), textcoords="offset points", arrowprops=line)
    ax.set(title=r"Strength of the pull, $\alpha_k$", xlabel="$k+1$", xlim=(1, 1e5), ylim=(1e-7, 20))
    ax.set(xticks=[1, 1e1, 1e2, 1e3, 1e4, 1e5], yticks=[1e1, 1e-1, 1e-3, 1e-5, 1e-7])


def indices(ax: Axes) -> None:
    """Plot both indices as a ratio to the first order. They differ in the first steps."""
    ks = range(16)
    x = [k + 1 for k in ks]
    for function, colour, marker, label in (
        (alpha, COLOURS[1.0], "o", "as in Algorithm 2"),
        (alpha_section2, MUTED, "s", "as in Section 2"),
    ):
        y = [function(k, 1.0) / alpha_asymptote(k, 1.0) for k in ks]
        ax.plot(x, y, color=colour, lw=1.2, marker=marker, ms=3.5, label=label)
    ax.axhline(1, **DASHED)
    ax.legend(frameon=False, loc="upper right")
    ax.set(title=r"The two indices, as $\alpha_k \cdot 2 \eta (k+1)$", xlabel="$k+1$")
    ax.set(xticks=[1, 4, 8, 12, 16], yticks=[0.5, 1.0, 1.5, 2.0], ylim=(0.5, 2.05))


def main() -> None:
    """Write the figure. The bytes are the same every time."""
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.3), layout="constrained")
        strength(axes[0])
        indices(axes[1])
        for ax in axes:
            ax.minorticks_off()
            ax.grid(visible=True)
            ax.set_axisbelow(True)
        figure.get_layout_engine().set(wspace=0.08)
        figure.savefig(OUT, metadata={"Date": None})
        plt.close(figure)
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
