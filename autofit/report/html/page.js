"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  drawing.begin(() => {
    for (const [name, figure] of Object.entries(figures)) drawing.draw(`figure-${name}`, figure);
  });
})();
