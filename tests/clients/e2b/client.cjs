// E2B's JavaScript client as its quick starts use it: NODE_PATH=... node client.cjs
const assert = require("node:assert/strict");
const sdk = require("@e2b/code-interpreter");
const { Sandbox } = sdk;

async function raised(name, promise) {
  const error = await promise.then(() => assert.fail(`${name} was not raised`), (caught) => caught);
  assert.equal(error.constructor, sdk[name], `${error}`);
}

async function main() {
  const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { user: "js" }, envs: { NAME: "world" } });
  const lines = [];
  const execution = await sandbox.runCode("import os\nprint('hello', os.environ['NAME'])\nx = 41\nx + 1", {
    onStdout: (message) => lines.push(message.line),
  });
  assert.deepEqual([execution.text, lines], ["42", ["hello world\n"]]);
  assert.equal((await sandbox.runCode("1 / 0")).error.name, "ZeroDivisionError");
  const context = await sandbox.createCodeContext({ language: "javascript" });
  assert.equal((await sandbox.runCode("var y = 2; y * 2", { context })).text, "4");
  assert.ok((await sandbox.listCodeContexts()).some((each) => each.id === context.id));
  await sandbox.restartCodeContext(context);
  await sandbox.removeCodeContext(context);

  assert.equal((await sandbox.files.write("dir/a.txt", "hello")).path, "/home/user/dir/a.txt");
  assert.equal(await sandbox.files.read("/home/user/dir/a.txt"), "hello");
  const seen = await new Promise(async (resolve) => {
    const watch = await sandbox.files.watchDir("dir", (event) => {
      if (event.type === "write") watch.stop().then(() => resolve(event.name));
    });
    await sandbox.files.write([{ path: "dir/b.txt", data: "1" }, { path: "c.txt", data: new Blob(["22"]) }]);
  });
  assert.equal(seen, "b.txt");
  assert.deepEqual((await sandbox.files.list(".")).map((each) => each.name), ["c.txt", "dir"]);
  assert.deepEqual([await sandbox.files.exists("none"), await sandbox.files.makeDir("dir")], [false, false]);
  assert.equal((await sandbox.files.rename("c.txt", "d.txt")).path, "/home/user/d.txt");
  await sandbox.files.remove("d.txt");

  assert.equal((await sandbox.commands.run("echo $NAME")).stdout, "world\n");
  const cat = await sandbox.commands.run("cat", { background: true, stdin: true });
  await sandbox.commands.sendStdin(cat.pid, "in\n");
  assert.deepEqual((await sandbox.commands.list()).map((each) => each.pid), [cat.pid]);
  await sandbox.commands.closeStdin(cat.pid);
  assert.equal((await cat.wait()).stdout, "in\n");

  let shown = "";
  const pty = await sandbox.pty.create({ cols: 90, rows: 20, onData: (data) => { shown += Buffer.from(data); } });
  await sandbox.pty.resize(pty.pid, { cols: 110, rows: 25 });
  await sandbox.pty.sendInput(pty.pid, Buffer.from("stty size; exit\n"));
  assert.equal((await pty.wait()).exitCode, 0);
  assert.match(shown, /25 110/);

  await raised("CommandExitError", sandbox.commands.run("exit 3"));
  await raised("TimeoutError", sandbox.commands.run("sleep 60", { timeoutMs: 500 }));
  await raised("InvalidArgumentError", sandbox.commands.run("id", { user: "root" }));
  await raised("FileNotFoundError", sandbox.files.read("none"));
  await raised("SandboxNotFoundError", Sandbox.connect("none"));
  await raised("AuthenticationError", Sandbox.create({ apiKey: "wrong" }));

  await sandbox.setTimeout(600_000);
  assert.deepEqual((await sandbox.getInfo()).metadata, { user: "js" });
  assert.equal((await sandbox.getMetrics()).length, 1);
  assert.equal((await Sandbox.list({ query: { metadata: { user: "js" } } }).nextItems()).length, 1);
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.isRunning(), false);
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
