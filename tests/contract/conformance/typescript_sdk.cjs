// Takes the answer to tools/list as the TypeScript SDK does: by its zod schema, then by a validator for each schema.
//
//     node typescript_sdk.cjs SDK-FOLDER TOOLS.json
const { readFileSync } = require("node:fs");
const [folder, file] = process.argv.slice(2);
const { ListToolsResultSchema } = require(`${folder}/dist/cjs/types.js`);
const { AjvJsonSchemaValidator } = require(`${folder}/dist/cjs/validation/ajv-provider.js`);

const validators = new AjvJsonSchemaValidator();
const { tools } = ListToolsResultSchema.parse({ tools: JSON.parse(readFileSync(file)) });
const names = tools.filter((tool) => {
  validators.getValidator(tool.inputSchema);
  return validators.getValidator(tool.outputSchema)({}).valid;
});
console.log(JSON.stringify(names.map((tool) => tool.name)));
