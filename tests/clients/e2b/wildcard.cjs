// E2B's JavaScript client where hosts' names say which sandbox is meant: nothing is set but E2B_DOMAIN and E2B_API_KEY.
const assert = require("node:assert/strict");
const { Sandbox } = require("@e2b/code-interpreter");

async function main() {
  const domain = process.env.E2B_DOMAIN;
  const sandbox = await Sandbox.create({ timeoutMs: 300_000 });
  assert.equal(sandbox.getHost(49983), `49983-${sandbox.sandboxId}.${domain}`);
  assert.equal((await sandbox.runCode("x = 41\nx + 1")).text, "42");
  const context = await sandbox.createCodeContext({});
  assert.equal((await sandbox.runCode("6 * 7", { context })).text, "42");
  await sandbox.files.write("dir/a.txt", "hello");
  assert.equal(await sandbox.files.read("dir/a.txt"), "hello");
  assert.equal((await sandbox.commands.run("cat dir/a.txt")).stdout, "hello");
  const again = await Sandbox.connect(sandbox.sandboxId);
  assert.equal(await again.isRunning(), true);

  // Signed addresses are used as they are, without a key.
  const down = await sandbox.downloadUrl("dir/a.txt", { useSignatureExpiration: 600 });
  assert.equal(new URL(down).host, `49983-${sandbox.sandboxId}.${domain}`);
  assert.equal(await (await fetch(down)).text(), "hello");
  const form = new FormData();
  form.append("file", new Blob(["signed"]), "b.txt");
  const up = await sandbox.uploadUrl("dir/b.txt", { useSignatureExpiration: 600 });
  assert.equal((await fetch(up, { method: "POST", body: form })).status, 200);
  assert.equal(await sandbox.files.read("dir/b.txt"), "signed");
  assert.equal((await fetch(down.replace("a.txt", "b.txt"))).status, 401);
  assert.equal((await fetch(down.replace(sandbox.sandboxId, "sbx-000000000000"))).status, 401);
  // A program's own port can't be reached.
  assert.equal((await fetch(`https://${sandbox.getHost(8000)}/health`)).status, 501);
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.isRunning(), false);
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
