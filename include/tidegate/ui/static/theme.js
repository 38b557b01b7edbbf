// Follows Airflow's light or dark theme. Airflow does not pass it to frames, so it is read from the surrounding page.
(() => {
  const root = document.documentElement;
  const outer = () => {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null;
    }
  };
  const themeName = () => {
    const classes = outer()?.classList;
    if (classes?.contains("dark")) return "dark";
    if (classes?.contains("light")) return "light";
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  // No seam between page and frame: the background is the first opaque colour around the frame.
  const backgroundOf = (element) => {
    if (!element) return "";
    const colour = getComputedStyle(element).backgroundColor;
    return /^(transparent|rgba\(.*, 0\))$/.test(colour) ? backgroundOf(element.parentElement) : colour;
  };
  const apply = () => {
    root.dataset.theme = themeName();
    const colour = backgroundOf(outer() && window.frameElement);
    if (colour) root.style.setProperty("--bg", colour);
    else root.style.removeProperty("--bg");
  };
  apply();
  const watched = outer();
  if (watched) new MutationObserver(apply).observe(watched, { attributes: true, attributeFilter: ["class"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
