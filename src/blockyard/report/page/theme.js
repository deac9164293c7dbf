// Light and dark.

/** The button that switches between light and dark; the choice is stored where the browser allows it. */
function theme() {
  const [root, button] = [document.documentElement, document.getElementById("theme")];
  const system = matchMedia("(prefers-color-scheme: dark)");
  const keep = (value) => { try { localStorage.setItem("blockyard-theme", value); } catch { /* browsers may deny storage to local files */ } };
  const kept = () => { try { return localStorage.getItem("blockyard-theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  };
  if (["light", "dark"].includes(kept())) root.dataset.theme = kept();
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; keep(root.dataset.theme); label(); });
  system.addEventListener("change", label);
  label();
}
