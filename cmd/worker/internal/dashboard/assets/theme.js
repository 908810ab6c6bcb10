// Before anything is drawn: the colours that a person chose here before.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("sluice-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // Nothing is kept here: the system's colours.
  }
})();
