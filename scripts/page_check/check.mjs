// Looks at a peer's page in a headless browser, as scripts/page_check.sh has it: every view at two widths and in both colours, what
// axe finds, a person's path through it, and pictures for the docs. Ends with 1 and says what is wrong.
//
//     node check.mjs STATE.json TSNODE PICTURES|-
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [state, tsnode, pictures] = process.argv.slice(2);
const { peers } = JSON.parse(readFileSync(state, "utf8"));
const dir = process.env.TESTNET;
const gateway = peers.find((peer) => peer.gateway);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const WIDTHS = [
  ["narrow", { width: 390, height: 844 }],
  ["wide", { width: 1280, height: 800 }],
];
const VIEWS = { chat: "Chat", swarm: "Swarm", requests: "Requests", machine: "My machine", join: "Join", testnet: "Testnet" };
/** What the page may weigh (bytes), and how long the first paint may take (ms): the middle of a few, since others use the processors. */
const MOST_BYTES = 300_000;
const FIRST_PAINT = 300;
const LOADS = 5;

/** Where a person's path is left: Playwright's trace, with a picture of each step. */
const PATH = process.env.PATH_FOLDER;

const wrong = [];
const complain = (text) => {
  wrong.push(text);
  console.error(`WRONG ${text}`);
};
const began = Date.now();
const told = (text) => console.log(`${((Date.now() - began) / 1000).toFixed(1).padStart(5)} s  ${text}`);
const run = (...words) => execFileSync(tsnode, words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });

/** Playwright films by an ffmpeg of its own make, which its registry has and npm's has not; what another calls so will do. */
const filmed = process.env.FILMED === "1";

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
process.on("exit", () => browser.close());

async function open(url, size, colorScheme = "light", more = {}) {
  const context = await browser.newContext({ viewport: size, colorScheme, reducedMotion: "reduce", ...more });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  // What a policy refuses is an error of the console, too.
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of (401|403|404|409|503)/.test(message.text())) complain(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => complain(`script: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("data:")) complain(`asks elsewhere: ${request.url()}`);
  });
  // A small model ends when it likes: what is looked at must last.
  await page.route("**/v1/chat/completions", (route) => {
    const body = { ...route.request().postDataJSON(), ignore_eos: true };
    return route.continue({ postData: JSON.stringify(body) });
  });
  await page.goto(`${url}/`);
  return page;
}

async function show(page, view) {
  await page.evaluate((view) => void (location.hash = `#/${view}`), view);
  await page.getByRole("heading", { level: 1, name: VIEWS[view.split("/")[0]] }).waitFor();
}

/** Playwright's own waiting is by eval, which the page's policy refuses. */
async function until(page, holds) {
  const deadline = Date.now() + 20_000;
  while (!(await page.evaluate(holds))) {
    if (Date.now() > deadline) throw new Error(`it never came to: ${holds}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** What axe finds that keeps people out, and whether the page is wider than its window. */
async function look(page, name) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, impact, nodes } of found.violations) {
    const where = nodes.slice(0, 2).map((node) => `${node.html.slice(0, 120)} ${(node.any[0]?.message ?? "").slice(0, 160)}`);
    const text = `${name}: axe ${impact} ${id}: ${where.join(" | ")}`;
    if (impact === "serious" || impact === "critical") complain(text);
    else told(text);
  }
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (over > 0) complain(`${name}: ${over} px wider than the window`);
}

async function picture(page, name) {
  if (pictures === "-") return;
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 70 });
  mkdirSync(pictures, { recursive: true });
  writeFileSync(join(pictures, `page-${name}.webp`), Buffer.from(data, "base64"));
}

async function weight() {
  const paints = [];
  let bytes = 0;
  for (let i = 0; i < LOADS; i++) {
    const page = await open(gateway.http, WIDTHS[1][1]);
    await page.getByRole("heading", { level: 1 }).waitFor();
    const [paint, sizes] = await page.evaluate(async () => {
      const painted = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
      while (painted() === undefined) await new Promise((done) => setTimeout(done, 20));
      const files = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
      return [painted(), files.filter((file) => /\/(page\.\w+)?$/.test(file.name)).map((file) => file.decodedBodySize)];
    });
    paints.push(paint);
    bytes = sizes.reduce((a, b) => a + b, 0);
    await page.context().close();
  }
  const middle = [...paints].sort((a, b) => a - b)[LOADS >> 1];
  told(`${bytes} bytes in all; first paint after ${paints.map((ms) => ms.toFixed(0)).join(", ")} ms`);
  if (bytes === 0 || bytes > MOST_BYTES) complain(`the page weighs ${bytes} bytes`);
  if (middle > FIRST_PAINT) complain(`the first paint came after ${middle.toFixed(0)} ms`);
}

async function say(page, text, most) {
  await show(page, "chat");
  await page.getByText("Sampling, system message, tools").click();
  await page.getByLabel("Most tokens").fill(String(most));
  await page.getByLabel("Temperature").fill("0");
  await page.getByText("Sampling, system message, tools").click();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

const answer = (page) => page.getByRole("article", { name: "Answer" }).last();

/** Chat, and where what was computed is shown. */
async function chat(page) {
  await say(page, "It was a dark and windy night, and", 48);
  await answer(page).getByText("Who computed it").click();
  const text = await answer(page).innerText();
  if (!/peer\d computed \d+/.test(text)) complain(`chat: nobody computed it: ${text}`);
  await picture(page, "chat");
  await answer(page).getByRole("link", { name: "All of this request" }).click();
  await page.getByRole("heading", { level: 1, name: "Requests" }).waitFor();
  await page.getByText("Slowest:").waitFor();
  await picture(page, "requests");
  await show(page, "chat");
  await page.reload();
  if (!(await answer(page).innerText()).trim()) complain("chat: what was said is gone after a reload");
  told("chat: asked, answered, traced, kept");
}

async function stops(page) {
  await say(page, "Once more, at length:", 900);
  await until(page, () => [...document.querySelectorAll("article.assistant")].at(-1)?.innerText.length > 60);
  await page.getByRole("button", { name: "Stop" }).click();
  await answer(page).getByText("stopped by you").waitFor();
  told("chat: stopped");
}

/** As a person does it, recorded: opens the page, asks, watches a peer being killed under an answer, and looks how to join. */
async function path() {
  rmSync(PATH, { recursive: true, force: true });
  mkdirSync(PATH, { recursive: true });
  const size = WIDTHS[1][1];
  const page = await open(gateway.http, size, "light", filmed ? { recordVideo: { dir: PATH, size } } : {});
  const steps = [];
  const step = async (name) => {
    steps.push(name);
    await page.screenshot({ path: join(PATH, `${steps.length}-${name}.png`) });
    await look(page, `path, ${name}`);
  };
  await page.context().tracing.start({ title: "A person's path", screenshots: true, snapshots: true });
  await page.getByRole("heading", { level: 1, name: "Chat" }).waitFor();
  await step("open");
  await say(page, "It was a dark and windy night, and", 48);
  await answer(page).getByText("Who computed it").waitFor();
  await step("chat");
  const name = await asksForLong(page);
  await show(page, "testnet");
  await page.getByRole("button", { name: `Kill ${name}` }).click();
  await page.getByText(`${name}: killed`).waitFor();
  await page.getByRole("button", { name: `Restart ${name}` }).waitFor();
  await step("killed");
  await show(page, "chat");
  await answered(page);
  await answer(page).getByText("Who computed it").click();
  await step("outlived");
  await show(page, "testnet");
  await page.getByRole("button", { name: `Restart ${name}` }).click();
  await page.getByText(`${name}: starts again`).waitFor();
  await show(page, "join");
  await page.getByText("tsnode invite", { exact: true }).first().waitFor();
  await page.getByRole("heading", { name: "Who joined when" }).waitFor();
  await step("join");
  await page.context().tracing.stop({ path: join(PATH, "trace.zip") });
  await page.context().close();
  told(`a person's path, recorded: ${steps.join(", ")}${filmed ? ", with a film" : ""} (${PATH})`);
}

/** Asks for a long answer, waits until it has begun, and says who decodes it. One that was quicker than the page is asked for again. */
async function asksForLong(page) {
  for (let tries = 0; tries < 10; tries++) {
    const name = await asksForLongOnce(page);
    if (name) return name;
  }
  throw new Error("ten answers ended before anybody was seen at work");
}

/** The same once: nobody, where the answer ended before anybody was seen at work. */
async function asksForLongOnce(page) {
  await show(page, "chat");
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "The captain said", 700);
  await until(page, () => [...document.querySelectorAll("article.assistant")].at(-1)?.innerText.length > 60);
  // Heartbeats say once a second who is at work, which is too seldom for an answer of a second: the gateway knows whom it asked.
  for (;;) {
    const [swarm, { running }] = await page.evaluate(() =>
      Promise.all(["/api/swarm", "/api/requests"].map((path) => fetch(path).then((answer) => answer.json()))),
    );
    const busy = swarm.peers.find((peer) => running.some((request) => request.decode === peer.id));
    if (busy) return busy.advert.name;
    if (await answer(page).getByText("Who computed it").isVisible()) return null;
    await page.waitForTimeout(50);
  }
}

/** The long answer came whole. */
async function answered(page) {
  await answer(page).getByText("Who computed it").waitFor({ timeout: 40_000 });
  const text = await answer(page).innerText();
  if (!text.includes("700 tokens")) complain(`the answer did not survive: ${text.slice(-200)}`);
}

/** A slow link, and then a partition between whoever decodes and all others: both by click, under answers that come whole. */
async function network(page) {
  const name = await asksForLong(page);
  await show(page, "testnet");
  await page.getByLabel("The link between").selectOption(name);
  await page.locator('select[name="to"]').selectOption("gateway0");
  await page.getByLabel("and later by (ms)").fill("30");
  await page.getByRole("button", { name: "Slow this link" }).click();
  await page.getByText(`the link between ${name} and gateway0 is slow`).waitFor();
  await page.getByText(`${name} to gateway0: 4 Mbit/s, 30 ms later`).waitFor();
  await look(page, "testnet with a slow link");
  await show(page, "chat");
  await answered(page);
  told(`a stream outlived a slow link to ${name}`);
  const cut = await asksForLong(page);
  await show(page, "testnet");
  await page.getByRole("group", { name: /Cut in two/ }).getByLabel(cut, { exact: true }).check();
  await page.getByRole("button", { name: "Partition" }).click();
  await page.getByText(`${cut} cut off from all others`).waitFor();
  await page.getByText(`${cut} is cut off from`).waitFor();
  await look(page, "testnet cut in two");
  await show(page, "chat");
  await answered(page);
  await show(page, "testnet");
  await page.getByRole("button", { name: "Make the network whole" }).click();
  await page.getByText("every network is whole again").waitFor();
  await page.getByText("It is whole.").waitFor();
  told(`a stream outlived a partition of ${cut}, and the network is whole`);
  await until(page, () => fetch("/api/swarm").then((answer) => answer.json()).then((swarm) => swarm.peers.length === 4 && swarm.plan?.groups.every((group) => swarm.ready_groups.includes(group.id))));
}

/** A peer that decodes is killed by a click under an answer, which goes on; it is started again, stopped and let go on. */
async function survives(page) {
  await show(page, "chat");
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "The captain said", 700);
  await until(page, () => [...document.querySelectorAll("article.assistant")].at(-1)?.innerText.length > 60);
  await show(page, "swarm");
  await page.getByRole("button", { name: /under way/ }).first().waitFor();
  const { running } = await page.evaluate(() => fetch("/api/requests").then((answer) => answer.json()));
  if (running.length !== 1) complain(`${running.length} requests are under way`);
  const swarm = await page.evaluate(() => fetch("/api/swarm").then((answer) => answer.json()));
  const busy = swarm.peers.find((peer) => peer.load.running > 0 && peer.id !== swarm.me);
  const name = busy.advert.name;
  await show(page, "testnet");
  await page.getByRole("button", { name: `Kill ${name}` }).click();
  await page.getByText(`${name}: killed`).waitFor();
  await page.getByRole("button", { name: `Restart ${name}` }).waitFor();
  await look(page, "testnet with a peer that has ended");
  await show(page, "chat");
  await answer(page).getByText("Who computed it").waitFor();
  const text = await answer(page).innerText();
  if (!text.includes("700 tokens")) complain(`the answer did not survive: ${text.slice(-200)}`);
  await answer(page).getByText("Who computed it").click();
  await answer(page).getByRole("link", { name: "All of this request" }).click();
  await page.getByRole("heading", { name: "Moves" }).waitFor();
  told(`a stream outlived ${name}`);
  await show(page, "testnet");
  await page.getByText("went on elsewhere once").first().waitFor();
  for (const [deed, said, next] of [["Restart", "starts again", "Stop"], ["Stop", "stopped", "Continue"], ["Continue", "goes on", "Kill"]]) {
    await page.getByRole("button", { name: `${deed} ${name}` }).click();
    await page.getByText(`${name}: ${said}`).waitFor();
    await page.getByRole("button", { name: `${next} ${name}` }).waitFor();
  }
  told(`${name}: started again, stopped, goes on, all by click`);
}

async function owner(page) {
  await show(page, "machine");
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Lend again" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
  await page.getByRole("button", { name: "Leave the swarm…" }).click();
  await page.getByRole("button", { name: "Stay" }).click();
  told("my machine: paused, lends again, stays");
  await page.getByLabel("Lend from").fill("22:00");
  await page.getByLabel("until").fill("07:30");
  await page.getByRole("button", { name: "Lend in these hours" }).click();
  await page.getByText("every day from 22:00 to 07:30").waitFor();
  await page.getByRole("button", { name: "Lend at all hours" }).click();
  await page.getByText("at all hours", { exact: true }).waitFor();
  told("my machine: hours set, and all of them again");
  const limits = page.getByRole("region", { name: "Limits and hours" });
  await limits.getByLabel("Upload, Mbit/s").fill("2.5");
  await limits.getByRole("button", { name: "Set these limits" }).click();
  await limits.getByText("2.5 Mbit/s to all together", { exact: true }).waitFor();
  const kept = run("limits", "--json", "--data-dir", gateway.data_dir);
  if (JSON.parse(kept).kept["upload-mbit"] !== "2.5") complain(`what was set is not kept: ${kept}`);
  await limits.getByLabel("Threads").fill("1000");
  await limits.getByRole("button", { name: "Set these limits" }).click();
  await limits.getByText("lends no model").waitFor();
  await page.reload();
  await limits.getByLabel("Upload, Mbit/s").fill("");
  await limits.getByRole("button", { name: "Set these limits" }).click();
  await limits.getByText("2.5 Mbit/s to all together", { exact: true }).waitFor({ state: "detached" });
  told("my machine: uploads limited, kept, and not limited again; who lends nothing says so");
}

/** What nobody can compute is told where it is seen, and the message is not lost. */
async function mistypes(page) {
  await show(page, "chat");
  await page.getByRole("button", { name: "New conversation" }).click();
  const more = () => page.getByText("Sampling, system message, tools").click();
  await more();
  await page.getByLabel("Tools, as OpenAI's list").fill("[no");
  await more();
  await page.getByLabel("Message", { exact: true }).fill("It was a dark");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("The tools are no JSON").waitFor();
  await more();
  await page.getByLabel("Tools, as OpenAI's list").fill("");
  await page.getByLabel("Most tokens").fill("5");
  await more();
  await page.getByRole("button", { name: "Answer again" }).click();
  await answer(page).getByText("Who computed it").waitFor();
  told("chat: tools that are no JSON are told, and the message is answered without them");
}

async function joins(page) {
  await show(page, "join");
  await page.getByLabel("Invite", { exact: true }).fill("ts1 no");
  await page.getByText("An invite begins with ts1").waitFor();
  await page.getByLabel("Invite", { exact: true }).fill(run("invite", "--data-dir", gateway.data_dir).trim());
  await page.getByRole("img", { name: "The invite as a QR code" }).waitFor();
  await look(page, "join with an invite");
  const who = page.getByRole("region", { name: "Who joined when" });
  await who.getByRole("row", { name: /peer0.*here/ }).waitFor();
  await page.reload();
  await who.getByRole("row", { name: /peer0.*here/ }).waitFor();
  await picture(page, "join");
  told("join: the line, the code, and who joined when, after a reload too");
}

/** An open swarm's invite that the peer does not say: told so, and asked for again. This swarm is private, so what its peer says is changed. */
async function invites() {
  const page = await open(gateway.http, WIDTHS[1][1]);
  await page.route("**/api/events*", (route) => route.fulfill({ status: 503, json: { error: { message: "all places are taken" } } }));
  await page.route("**/api/swarm", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...(await answer.json()), private: false } });
  });
  let fails = true;
  await page.route("**/api/invite", (route) =>
    fails ? route.fulfill({ status: 503, json: { error: { message: "its disk is full" } } }) : route.fulfill({ json: { invite: `ts1${"a".repeat(40)}` } }),
  );
  await show(page, "join");
  await page.reload();
  await page.getByText("its disk is full").waitFor();
  fails = false;
  await page.getByRole("button", { name: "Ask again" }).click();
  await page.getByText(`tsnode join --invite ts1${"a".repeat(40)}`).waitFor();
  await page.context().close();
  told("join: an invite that cannot be had is told, and asked for again");
}

async function breaks(page) {
  await show(page, "testnet");
  await page.getByLabel("Everything leaves later by (ms)").fill("5");
  await page.getByRole("button", { name: "Break it" }).click();
  await page.getByText("Done: others notice").waitFor();
  await page.getByRole("button", { name: "Heal" }).click();
  await until(page, () => fetch("/api/faults").then((answer) => answer.json()).then((faults) => faults.ms === 0));
  told("testnet: broken and healed");
}

/** The first key closes the page, which then asks for it. */
async function keys() {
  const made = (...scope) => /tsk-\S+/.exec(run("keys", "add", ...scope, "--data-dir", gateway.data_dir))[0];
  const key = made("ops", "--scope", "admin");
  for (const [name, size] of WIDTHS) {
    const page = await open(gateway.http, size);
    const deadline = Date.now() + 5000;
    while (!(await page.getByRole("button", { name: "Show" }).isVisible()) && Date.now() < deadline) await page.reload();
    await look(page, `key, ${name}`);
    await page.getByRole("textbox", { name: "Key" }).fill("tsk-wrong");
    await page.getByRole("button", { name: "Show" }).click();
    await page.getByText("Incorrect API key").waitFor();
    await page.getByRole("textbox", { name: "Key" }).fill(key);
    await page.getByRole("button", { name: "Show" }).click();
    await show(page, "swarm");
    await page.getByRole("group", { name: "Map of peers" }).waitFor();
    await page.getByRole("button", { name: "Forget the key" }).click();
    await page.getByRole("button", { name: "Show" }).waitFor();
    await page.context().close();
  }
  told("key: asked for, refused, taken, forgotten");
  const prompts = made("bob");
  const page = await open(gateway.http, WIDTHS[0][1]);
  const deadline = Date.now() + 5000;
  do {
    await page.getByRole("textbox", { name: "Key" }).fill(prompts);
    await page.getByRole("button", { name: "Show" }).click();
    await Promise.race([page.getByRole("button", { name: "Send" }).waitFor(), page.getByText("Incorrect API key").waitFor()]);
  } while (!(await page.getByRole("button", { name: "Send" }).isVisible()) && Date.now() < deadline);
  await say(page, "The rain", 4);
  await answer(page).getByText("Who computed it").waitFor();
  await page.evaluate(() => void (location.hash = "#/swarm"));
  await page.getByText("may send prompts only").waitFor();
  await look(page, "a key for prompts");
  await page.context().close();
  told("key: one for prompts chats, and sees nothing else");
}

async function everyView() {
  for (const [width, size] of WIDTHS) {
    for (const colours of ["light", "dark"]) {
      const page = await open(gateway.http, size, colours);
      for (const view of Object.keys(VIEWS)) {
        if (view === "testnet") await page.getByRole("link", { name: "Testnet" }).waitFor();
        await show(page, view);
        if (view === "swarm") await page.getByRole("button", { name: /peer0/ }).first().click();
        if (view === "requests") await page.getByRole("row").nth(1).waitFor();
        await look(page, `${view}, ${width}, ${colours}`);
        if (view === "swarm" && (width === "wide") === (colours === "light")) await picture(page, `swarm-${width}`);
      }
      await page.context().close();
    }
    told(`every view, ${width}`);
  }
}

/** On a wall, where text and all else are larger. */
async function wall() {
  const page = await open(gateway.http, { width: 3840, height: 2160 }, "dark");
  for (const view of Object.keys(VIEWS)) {
    if (view === "testnet") await page.getByRole("link", { name: "Testnet" }).waitFor();
    await show(page, view);
    const [over, text] = await page.evaluate(() => [
      document.documentElement.scrollWidth - innerWidth,
      parseFloat(getComputedStyle(document.querySelector("main")).fontSize),
    ]);
    if (over > 0 || text < 20) complain(`${view}, 4K: ${over} px wider than the window, text of ${text} px`);
  }
  await page.context().close();
  told("every view, 4K");
}

/** A peer that computes, as its owner sees it. */
async function lends() {
  const page = await open(peers.find((peer) => !peer.gateway).http, WIDTHS[0][1]);
  await show(page, "machine");
  await page.getByRole("heading", { name: "Lends" }).waitFor();
  await page.getByText("leads").waitFor();
  await page.getByRole("img", { name: /Tokens by day/ }).waitFor();
  await look(page, "a peer that lends");
  await picture(page, "machine");
  await page.context().close();
}

/** Without a mouse: the views are links, and a view's heading is where a screen reader begins. */
async function keyboard(page) {
  await page.reload();
  await page.keyboard.press("Tab");
  if ((await page.evaluate(() => document.activeElement?.textContent)) !== "Skip to the view") complain("the first Tab does not skip");
  await page.getByRole("link", { name: "Swarm" }).focus();
  await page.keyboard.press("Enter");
  await until(page, () => document.activeElement?.tagName === "H1" && document.activeElement.textContent === "Swarm");
  told("keyboard: skips, and begins at the heading");
}

try {
  await weight();
  const page = await open(gateway.http, WIDTHS[1][1]);
  await chat(page);
  await stops(page);
  await keyboard(page);
  await mistypes(page);
  await owner(page);
  await joins(page);
  await invites();
  await breaks(page);
  await everyView();
  await wall();
  await lends();
  await survives(page);
  await network(page);
  await page.context().close();
  await path();
  await keys();
} catch (error) {
  complain(error.stack ?? String(error));
}
await browser.close();
console.log(wrong.length ? `${wrong.length} things are wrong` : "the page is as it should be");
process.exit(wrong.length ? 1 : 0);
