"use strict";
// The page of `autofit ui`: controls make moves, of which one at a time is asked for; parts of an answer are lines of JSON.
(() => {
  const $ = (id) => document.getElementById(id);
  const NAMES = ["model", "gpu", "batch_size", "seq_len", "precision", "optimizer", "checkpointing", "base", "adapter"];
  const CATEGORIES = {
    parameters: "parameters", gradients: "gradients", optimizer_state: "optimizer state", activations: "activations",
    inputs: "inputs", workspace: "workspace", other: "temporaries, other",
  };
  const VERDICTS = { fits: ["fits", "good"], unsure: ["unsure", "unsure"], "does-not-fit": ["does not fit", "bad"] };
  const MOST = 1024; // batch size at the end of the slider; larger ones can be typed
  const tab = Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("");
  let number = 0;
  let wanted = null; // the move that is to be asked for next
  let running = null; // { abort, isReplaceable } of the one that is asked for
  let shown = null; // the last answer
  let figure = null;

  const size = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };

  // ── controls ──
  const toSlider = (batch) => Math.round((200 * Math.log(Math.min(Math.max(batch, 1), MOST))) / Math.log(MOST));
  const toBatch = (position) => Math.round(MOST ** (position / 200));
  const moved = () => {
    const values = { tab, number: ++number };
    for (const name of NAMES) {
      const value = $(name).value.trim();
      if (value) values[name] = value;
    }
    return values;
  };
  const remember = (values) => {
    const kept = Object.entries(values).filter(([name]) => NAMES.includes(name));
    history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  };
  const recall = () => {
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (NAMES.includes(name)) $(name).value = value;
  };

  // ── asking ──
  const move = () => {
    const values = moved();
    remember(values);
    if (!values.model) {
      if (running) running.abort();
      wanted = null;
      $("state").textContent = "Name a model, such as gpt2.";
      return;
    }
    wanted = values;
    if (running && running.isReplaceable) running.abort();
    if (!running) next();
  };
  const next = () => {
    if (!wanted) return;
    const values = wanted;
    wanted = null;
    ask(values);
  };
  const ask = async (values) => {
    const control = new AbortController();
    const mine = { isReplaceable: false, abort: () => control.abort() };
    running = mine;
    $("answer").setAttribute("aria-busy", "true");
    try {
      const response = await fetch("answer", {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values), signal: control.signal,
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) show(JSON.parse(line), values);
        mine.isReplaceable = true; // what comes from now on is progress, or more of what was answered
        if (wanted) { control.abort(); break; }
      }
      if (!wanted) settled();
    } catch (error) {
      if (error.name !== "AbortError") fail("The server does not answer: start `autofit ui` again, and open the address that it prints.");
    } finally {
      if (running === mine) running = null;
      next();
    }
  };
  const settled = () => {
    $("answer").setAttribute("aria-busy", "false");
    if (shown && $("error").hidden) $("live").textContent = `${$("verdict").textContent}. ${$("words").textContent}`;
  };

  // ── showing ──
  const stale = (is) => {
    for (const id of ["result", "curve-section", "memory-section", "cards-section", "export-section"]) $(id).classList.toggle("stale", is);
  };
  const fail = (message) => {
    $("state").textContent = "";
    $("what").textContent = "no answer";
    $("error").textContent = message;
    $("error").hidden = false;
    $("answer").setAttribute("aria-busy", "false");
    stale(true);
  };
  const show = (part, values) => {
    if (part.progress) {
      $("error").hidden = true;
      const said = `tracing… ${part.progress.stage.replace("tracing ", "")}, ${part.progress.seconds.toFixed(1)} s`;
      $("state").textContent = $("what").textContent = said;
      stale(true);
    }
    if (part.error) fail(part.error.message);
    if (part.answer) showAnswer(part.answer, values);
    if (part.cards) showCards(part.cards);
    if ("curve" in part) {
      figure = part.curve;
      $("curve-section").hidden = figure === null;
      drawCurve();
    }
  };
  const showAnswer = (answer, values) => {
    shown = answer;
    const { estimate, check, words, sample } = answer;
    $("error").hidden = true;
    $("state").textContent = "";
    stale(false);
    for (const id of ["result", "memory-section", "export-section"]) $(id).hidden = false;
    const [word, mark] = check ? VERDICTS[check.verdict] : [size(estimate.interval.likely_bytes), ""];
    $("verdict").textContent = check ? `${word} on ${values.gpu}` : `${word}, likely`;
    $("verdict").className = `verdict ${mark}`;
    $("words").textContent = words.join(" ").replace(/^(fits|unsure|does not fit): /, ""); // which stands above
    $("what").textContent = `${word}: ${estimate.workload} at batch ${estimate.batch_size}`;
    document.title = $("what").textContent;
    showFacts(estimate, check);
    showMemory(estimate);
    showExports(answer);
    showSample(sample);
    drawCurve();
  };
  const showFacts = (estimate, check) => {
    const interval = estimate.need && estimate.likely_verdict === "OOM" ? estimate.need : estimate.interval;
    const facts = [
      ["reserved, likely", interval.likely_bytes, `${size(interval.low_bytes)} to ${size(interval.high_bytes)}`],
      ["allocated", estimate.peak_allocated_bytes, "live tensors at the peak"],
      ["on the device", estimate.device_peak_bytes, `with ${size(estimate.context_bytes)} of context`],
    ];
    if (check) facts.push(["usable", check.budget.usable_bytes, `of ${size(check.budget.device_total_bytes)}`]);
    if (estimate.step_seconds) facts.push(["a step", `${(1000 * estimate.step_seconds.likely).toFixed(1)} ms`, `${estimate.samples_per_second.toFixed(1)} samples a second`]);
    $("facts").replaceChildren(...facts.map(([name, value, note]) => {
      const box = element("div");
      const shownValue = element("dd", typeof value === "number" ? size(value) : value);
      if (typeof value === "number") shownValue.title = `${value} bytes`;
      box.append(element("dt", name), shownValue, element("dd", note, "note"));
      return box;
    }));
  };
  const showMemory = (estimate) => {
    const parts = Object.entries(estimate.breakdown).filter(([, bytes]) => bytes > 0).sort((one, other) => other[1] - one[1]);
    const total = estimate.peak_allocated_bytes;
    const rows = parts.map(([name, bytes]) => {
      const row = element("tr");
      const bar = element("td");
      const fill = element("div", undefined, "fill");
      fill.style.width = `${(100 * bytes) / total}%`;
      bar.append(fill);
      row.append(element("td", CATEGORIES[name]), element("td", size(bytes), "number"), element("td", `${((100 * bytes) / total).toFixed(0)} %`, "number"), bar);
      return row;
    });
    const sum = element("tr", undefined, "sum");
    sum.append(element("td", "= allocated peak"), element("td", size(total), "number"), element("td"), element("td"));
    $("memory").tBodies[0].replaceChildren(...rows, sum);
  };
  const showExports = (answer) => {
    const named = { ...Object.fromEntries(Object.entries(answer.commands).map(([name, text]) => [`autofit ${name}`, text])), "settings for autofit tune --config": answer.settings };
    $("exports").replaceChildren(...Object.entries(named).map(([name, text]) => {
      const box = element("div");
      const head = element("div", undefined, "named");
      const copy = element("button", "copy", "copy");
      copy.type = "button";
      copy.setAttribute("aria-label", `copy ${name}`);
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(text);
        copy.textContent = "copied";
      });
      head.append(element("span", name), copy);
      box.append(head, element("pre", text));
      return box;
    }));
  };
  const showSample = (sample) => {
    const slider = $("seq");
    slider.disabled = !sample || !sample.size;
    if (slider.disabled) return;
    const multiple = sample.multiple || 1;
    const longest = sample.longest || 4 * sample.size;
    slider.min = slider.step = multiple;
    slider.max = Math.max(multiple, Math.floor(longest / multiple) * multiple);
    if (document.activeElement !== slider) slider.value = $("seq_len").value || sample.size;
    $("seq_len").placeholder = String(sample.size);
  };
  const showCards = (answer) => {
    const chosen = $("gpu").value;
    const only = $("only-fitting").checked;
    $("cards-section").hidden = false;
    $("cards-section").answer = answer;
    const counts = Object.entries(VERDICTS).map(([verdict, [word]]) => `${word}: ${answer.cards.filter((card) => card.verdict === verdict).length}`);
    $("counts").textContent = `Batch ${answer.batch_size} — ${counts.join(", ")}. Choose a card by its name.`;
    const rows = answer.cards.filter((card) => !only || card.verdict === "fits").map((card) => {
      const row = element("tr");
      const name = element("td");
      const button = element("button", card.gpu);
      button.type = "button";
      button.addEventListener("click", () => { $("gpu").value = card.gpu; move(); });
      name.append(button);
      const interval = (card.likely_verdict === "OOM" && card.need) || card.interval;
      const [word, mark] = VERDICTS[card.verdict];
      const verdict = element("td", word, mark);
      if (card.reason) verdict.title = card.reason;
      row.append(name, element("td", size(card.total_bytes), "number"), verdict, element("td", interval ? size(interval.high_bytes) : "–", "number"), element("td", card.largest_batch === null ? "–" : String(card.largest_batch), "number"));
      if (card.gpu === chosen) row.setAttribute("aria-current", "true");
      return row;
    });
    $("cards").tBodies[0].replaceChildren(...rows);
  };
  const drawCurve = () => {
    if (!figure || !shown) return;
    const { estimate } = shown;
    const likely = (estimate.need || estimate.interval).likely_bytes / figure.unit_bytes;
    const here = {
      type: "scatter", mode: "markers", name: "this batch", x: [estimate.batch_size], y: [likely],
      marker: { size: 13, symbol: "diamond-open", color: "var:ink", line: { width: 3 } }, hovertemplate: "batch %{x}: %{y:.2f}<extra></extra>",
    };
    const layout = { ...figure.figure.layout, height: 380 };
    drawing.draw("curve", { data: [...figure.figure.data, here], layout });
  };

  // ── from here on ──
  recall();
  $("batch").value = toSlider(Number($("batch_size").value) || 1);
  $("batch").setAttribute("aria-valuetext", $("batch_size").value);
  $("batch").addEventListener("input", () => {
    $("batch_size").value = toBatch(Number($("batch").value));
    $("batch").setAttribute("aria-valuetext", $("batch_size").value);
    move();
  });
  $("batch_size").addEventListener("input", () => {
    if (!$("batch_size").value.trim()) return; // it is being typed
    $("batch").value = toSlider(Number($("batch_size").value) || 1);
    $("batch").setAttribute("aria-valuetext", $("batch_size").value);
    move();
  });
  $("seq").addEventListener("input", () => { $("seq_len").value = $("seq").value; });
  for (const id of ["seq", "seq_len", "model", "gpu", "precision", "optimizer", "checkpointing", "base", "adapter"]) {
    $(id).addEventListener("change", move);
  }
  $("form").addEventListener("submit", (event) => { event.preventDefault(); move(); });
  $("only-fitting").addEventListener("change", () => showCards($("cards-section").answer));
  drawing.begin(drawCurve);
  move();
})();
