// Light or dark as Airflow is: it tells frames nothing, so its own page is looked at, and followed when it changes.
(() => {
  const root = document.documentElement;
  const outer = () => {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null;
    }
  };
  const wanted = () => {
    const classes = outer()?.classList;
    if (classes?.contains("dark")) return "dark";
    if (classes?.contains("light")) return "light";
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  // No seam between the page and the frame in it: what is seen through the frame is the first colour behind it.
  const around = (element) => {
    if (!element) return "";
    const colour = getComputedStyle(element).backgroundColor;
    return /^(transparent|rgba\(.*, 0\))$/.test(colour) ? around(element.parentElement) : colour;
  };
  const apply = () => {
    root.dataset.theme = wanted();
    const colour = around(outer() && window.frameElement);
    if (colour) root.style.setProperty("--bg", colour);
    else root.style.removeProperty("--bg");
  };
  apply();
  const watched = outer();
  if (watched) new MutationObserver(apply).observe(watched, { attributes: true, attributeFilter: ["class"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
