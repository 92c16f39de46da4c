// A table that is wider than the screen scrolls by the keyboard, too; the theme makes its frame late.
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
});
