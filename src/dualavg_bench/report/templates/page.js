"use strict";
// Hide an optimizer, switch an axis, copy a setting, show values under the pointer.
// Without this script the page has the same content.
for (const key of document.querySelectorAll("button.key")) {
  key.disabled = false;
  key.addEventListener("click", () => {
    const study = key.closest(".study"), look = key.dataset.look;
    const hidden = study.classList.toggle("hide-" + look);
    for (const same of study.querySelectorAll(`button.key[data-look="${look}"]`)) {
      same.setAttribute("aria-pressed", String(!hidden));
    }
  });
}
for (const button of document.querySelectorAll("button.switch")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    for (const plot of button.closest("figure").querySelectorAll(".plot")) {
      if (plot.hidden) { plot.hidden = false; continue; }
      plot.hidden = true;
      button.textContent = plot.dataset.scale + " axis";
    }
  });
}
for (const button of navigator.clipboard ? document.querySelectorAll("button.copy") : []) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.closest(".line-to-copy").querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const plot of document.querySelectorAll("svg[data-values]")) {
  const series = JSON.parse(plot.dataset.values), study = plot.closest(".study");
  const rings = plot.appendChild(document.createElementNS(plot.namespaceURI, "g"));
  const leave = () => { tip.hidden = true; rings.replaceChildren(); };
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("pointermove", event => {
    const ctm = plot.getScreenCTM();
    const x = (event.clientX - ctm.e) / ctm.a, y = (event.clientY - ctm.f) / ctm.d;
    const distance = point => Math.hypot(point[0] - x, point[1] - y);
    const shown = series.filter(([look]) => !study.classList.contains("hide-" + look));
    const points = shown.flatMap(([look, name, own]) => own.map(point => [...point, look, name]));
    const nearest = points.reduce((best, point) => best && distance(best) <= distance(point) ? best : point, null);
    leave();
    if (!nearest || distance(nearest) > 60) return;
    const line = (text, look) => {
      const row = tip.appendChild(document.createElement("div"));
      row.textContent = text;
      if (look !== undefined) row.style.borderLeft = `3px solid var(--c${look})`;
    };
    tip.replaceChildren();
    line(nearest[2]);
    for (const [px, py, at, text, look, name] of points.filter(point => point[2] === nearest[2])) {
      line(`${name}: ${text}`, look);
      const ring = rings.appendChild(document.createElementNS(plot.namespaceURI, "circle"));
      for (const [key, value] of Object.entries({ cx: px, cy: py, r: 4, class: "ring" })) ring.setAttribute(key, value);
    }
    tip.hidden = false;
    const width = document.documentElement.clientWidth;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, width - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 14) + "px";
  });
}
