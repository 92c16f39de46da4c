"use strict";
(() => {
  const body = document.querySelector("tbody");
  const rows = [...body.rows];
  const text = new Map(rows.map(row => [row, row.textContent.toLowerCase()]));
  const filter = document.getElementById("filter");
  const word = document.getElementById("word");
  const shown = document.getElementById("shown");
  const headings = [...document.querySelectorAll("thead th")];
  const verdictAt = headings.findIndex(heading => heading.textContent === "verdict");

  function select() {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const hasWord = !word || !word.value || row.cells[verdictAt].textContent === word.value;
      const isShown = hasWord && wanted.every(part => text.get(row).includes(part));
      row.hidden = !isShown;
      count += isShown;
    }
    shown.textContent = `${count} of ${rows.length} cells`;
  }

  function sort(heading, at) {
    const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const isNumber = heading.classList.contains("n");
    const value = row => {
      const cell = row.cells[at];
      if (!isNumber) return cell.textContent;
      return "v" in cell.dataset ? Number(cell.dataset.v) : null;
    };
    const keyed = rows.map(row => [value(row), row]);
    // What is not available stays last, whichever way.
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (isNumber ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    headings.forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    body.append(...keyed.map(([, row]) => row));
  }

  headings.forEach((heading, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => sort(heading, at));
    heading.replaceChildren(button);
  });
  const controls = document.querySelector(".controls");
  controls.hidden = false;
  controls.addEventListener("submit", event => event.preventDefault());
  filter.addEventListener("input", select);
  if (word) word.addEventListener("change", select);
  select();
})();
