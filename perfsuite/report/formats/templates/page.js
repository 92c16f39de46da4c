"use strict";
(() => {
  const body = document.querySelector(".cells tbody");
  const rows = [...body.rows];
  // All that is searched, read once: a keystroke then looks at no element but those it hides or shows.
  const texts = rows.map(row => row.textContent.toLowerCase());
  const filter = document.getElementById("filter");
  const word = document.getElementById("word");
  const shown = document.getElementById("shown");
  const headings = [...document.querySelectorAll(".cells thead th")];
  const verdictAt = headings.findIndex(heading => heading.textContent === "verdict");
  const verdicts = rows.map(row => verdictAt < 0 ? "" : row.cells[verdictAt].textContent);
  const collator = new Intl.Collator("en", { numeric: true });

  function select() {
    const terms = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosenVerdict = word ? word.value : "";
    let count = 0;
    rows.forEach((row, at) => {
      const isShown = (!chosenVerdict || verdicts[at] === chosenVerdict)
        && terms.every(part => texts[at].includes(part));
      if (row.hidden === isShown) row.hidden = !isShown;
      count += isShown;
    });
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
      return sign * (isNumber ? a - b : collator.compare(a, b));
    });
    headings.forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const ordered = document.createDocumentFragment();
    for (const [, row] of keyed) ordered.append(row);
    body.append(ordered);
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
