// Runs before anything is shown, so that a dark page never flashes light.
document.documentElement.dataset.script = "on";
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
