// Before anything is drawn: the theme that was chosen last time, so that nothing flashes.
(() => {
  try {
    const chosen = localStorage.getItem("lakewright.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // No storage: the theme of the system.
  }
})();
