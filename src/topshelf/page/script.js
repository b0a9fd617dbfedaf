// Sorting, filtering, copying: the page is whole without them.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 3 || table.classList.contains("ordered")) continue;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number"), now = head.getAttribute("aria-sort");
      const first = numeric ? "descending" : "ascending", second = numeric ? "ascending" : "descending";
      const next = now === null ? first : now === first ? second : null;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const text = (row) => row.cells[column].textContent.trim();
      const number = (row) => parseFloat(text(row).replace(/[,<\s]/g, ""));
      const sign = next === "ascending" ? 1 : -1;
      const order = (a, b) => {
        if (!numeric) return sign * text(a).localeCompare(text(b), undefined, { numeric: true });
        const [x, y] = [number(a), number(b)];
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);  // what is not there comes last
        return sign * (x - y);
      };
      body.append(...(next ? [...rows].sort(order) : rows));
    });
  });
  if (rows.length > 12) {
    const bar = document.createElement("label"), input = document.createElement("input");
    const count = document.createElement("span");
    bar.className = "filter";
    input.type = "search";
    count.setAttribute("aria-live", "polite");
    bar.append("Filter", input, count);
    table.closest(".wide").before(bar);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      rows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    });
  }
}
for (const box of document.querySelectorAll(".command")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  box.append(button);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
