// A page served by `blockyard board` polls for newer data and keeps the reader's choices.

const INTERVAL = 2000; // milliseconds

/** Start polling, if the page is live. */
function followBoard() {
  const address = document.documentElement.dataset.live;
  if (!address) return;
  const status = document.getElementById("live");
  let [etag, wait] = [document.documentElement.dataset.etag || null, INTERVAL];
  const show = (kind, text) => {
    status.className = `live ${kind}`;
    if (status.textContent !== text) status.textContent = text;
  };
  const poll = async () => {
    if (!document.hidden) {
      try {
        const response = await fetch(address, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
        if (response.status === 200) {
          const newer = await response.json();
          etag = response.headers.get("ETag");
          update(newer);
        } else if (response.status !== 304) throw new Error(`status ${response.status}`);
        const running = data.cells.filter((cell) => cell.state === "running").length;
        show("on", running ? `live · ${running} running` : "live");
        wait = INTERVAL;
      } catch {
        show("off", "disconnected; this is the last state of the board");
        wait = Math.min(wait * 2, 30000);
      }
    }
    setTimeout(poll, wait);
  };
  show("on", "live");
  setTimeout(poll, INTERVAL / 4);
}

/** Replace the data and redraw. */
function update(newer) {
  const empty = !data.arms.length;
  data = newer;
  if (empty) begin();
  state.metric ??= firstMetric();
  state.cost ??= firstCost();
  build();
}
