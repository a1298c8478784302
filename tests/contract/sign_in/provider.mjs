// A real OpenID Connect provider, for tests: node provider.mjs PORT RESOURCE PACKAGES [ISSUER]. It prints its issuer once
// it listens; ISSUER is where a proxy in front of it serves. Anybody signs in with any name and password; tokens are for
// RESOURCE with the scope `run`, and those of name@group, like ID tokens, say so. They are JWTs but for clients that are
// named `opaque`. POST /rotate has it begin anew, as after a restart: it signs with a new key, and publishes the older
// ones, too.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";

// Its package is in the tests' environment, and not beside this file.
const { Provider, errors } = await import(createRequire(process.argv[4]).resolve("oidc-provider"));
const [port, resource] = [Number(process.argv[2]), process.argv[3]];
const issuer = process.argv[5] ?? `http://127.0.0.1:${port}`;
const groups = (user = "") => (user.includes("@") ? { groups: user.split("@").slice(1) } : {});
const keys = [];

const configuration = {
  scopes: ["openid", "offline_access", "run"],
  claims: { openid: ["sub", "groups"] },
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({ accountId: id, claims: async () => ({ sub: id, ...groups(id) }) }),
  extraTokenClaims: (_, { accountId }) => groups(accountId),
  clientBasedCORS: () => true,
  clientDefaults: { id_token_signed_response_alg: "ES256" },
  pkce: { required: () => true },
  features: {
    devInteractions: { enabled: true },
    deviceFlow: { enabled: true },
    registration: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, indicator, client) => {
        if (indicator !== resource) throw new errors.InvalidTarget();
        const common = { scope: "run", audience: resource };
        if (client.clientName === "opaque") return { ...common, accessTokenFormat: "opaque" };
        return { ...common, accessTokenFormat: "jwt", jwt: { sign: { alg: "ES256" } } };
      },
    },
  },
};

function begun() {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  keys.unshift({ ...privateKey.export({ format: "jwk" }), use: "sig", alg: "ES256", kid: `key-${keys.length}` });
  const provider = new Provider(issuer, { ...configuration, jwks: { keys: [...keys] } });
  provider.proxy = true;
  return provider.callback();
}

let answer = begun();
createServer((request, response) => {
  if (request.url !== "/rotate") return answer(request, response);
  answer = begun();
  return response.end();
}).listen(port, "127.0.0.1", () => console.log(issuer));
