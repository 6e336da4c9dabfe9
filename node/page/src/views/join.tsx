// Join: the one line for the next machine, and an invite as a picture for a telephone's camera.

import { renderSVG } from "uqr";
import { useState } from "preact/hooks";
import { useLive } from "../live";
import { Heading, Line, Trouble, Waits, useAsked } from "../parts/small";
import { Arrivals } from "./arrivals";

/** An invite is in base32 behind its mark. */
const INVITE = /^ts1[a-z2-7]{20,8000}$/i;
/** What a QR code holds at most, in the least careful form (bytes). */
const MOST = 2900;

export function JoinView() {
  const { view } = useLive();
  if (!view) {
    return (
      <>
        <Heading title="Join">Join</Heading>
        <Waits />
      </>
    );
  }
  return (
    <>
      <Heading title="Join">Join</Heading>
      {view.private ? <Private swarm={view.swarm} /> : <Open swarm={view.swarm} addresses={view.addresses.join()} />}
      <Arrivals />
      <section>
        <h2>Where this peer is found</h2>
        {view.addresses.length ? (
          <ul class="plain">
            {view.addresses.map((address) => (
              <li key={address}>
                <code>{address}</code>
              </li>
            ))}
          </ul>
        ) : (
          <p class="quiet">
            It has no address that others could dial. Others find it on the same network, or over a peer that it has found; why that is so,
            and what to do, says <code>tsnode doctor</code>.
          </p>
        )}
      </section>
    </>
  );
}

/** An open swarm's invite says where peers are, and nothing that is secret: the peer gives it. */
function Open({ swarm, addresses }: { swarm: string; addresses: string }) {
  const { known, why, again } = useAsked<{ invite: string | null; why?: string }>("/api/invite", addresses);
  return (
    <>
      <p>
        The swarm <strong>{swarm}</strong> is open: whoever finds it is let in. On the same network this is all, on the new machine:
      </p>
      <Line text="tsnode join" label="Copy the line for this network" />
      {why && <Trouble what="There is no invite to show, by which it is joined from elsewhere" why={why} again={again} />}
      {known?.why && <p class="quiet">For an invite, by which it is joined from elsewhere: {known.why}.</p>}
      {known?.invite && (
        <section>
          <h2>For another machine</h2>
          <p>From elsewhere this invite says where peers are:</p>
          <Line text={`tsnode join --invite ${known.invite}`} label="Copy the line with the invite" />
          {known.invite.length <= MOST && <Code text={known.invite} says="The invite. It has no secret in it." />}
        </section>
      )}
    </>
  );
}

function Private({ swarm }: { swarm: string }) {
  const [given, set] = useState("");
  const invite = given.trim();
  const good = INVITE.test(invite);
  return (
    <>
      <p>
        The swarm <strong>{swarm}</strong> is private: it takes in who has an invite. Invites are secrets, so no peer gives them over
        HTTP; one is made on this peer's host:
      </p>
      <Line text="tsnode invite" label="Copy the line that makes an invite" />
      <section>
        <h2>For another machine</h2>
        <label>
          Invite
          <textarea
            rows={3}
            spellcheck={false}
            autocomplete="off"
            placeholder="ts1…"
            value={given}
            aria-invalid={invite !== "" && !good}
            onInput={(event) => set(event.currentTarget.value)}
          />
        </label>
        <p class="quiet small">It stays in this page: nothing is sent.</p>
        {invite !== "" && !good && <p class="trouble">An invite begins with ts1 and has letters and digits only: copy all of what tsnode invite prints.</p>}
        {good && (
          <>
            <p>The one line, on the new machine. It asks for the invite, since others can read what is on a command line:</p>
            <Line text="tsnode join --invite -" label="Copy the line" />
            <p>Where nobody else uses that machine, all in one:</p>
            <Line text={`tsnode join --invite ${invite}`} label="Copy the line with the invite" />
            {invite.length <= MOST && <Code text={invite} says="The invite. Whoever sees it can come in." />}
          </>
        )}
      </section>
    </>
  );
}

function Code({ text, says }: { text: string; says: string }) {
  const svg = renderSVG(text, { ecc: "L", border: 2 });
  return (
    <figure class="qr">
      <img src={`data:image/svg+xml,${encodeURIComponent(svg)}`} alt="The invite as a QR code" width={260} height={260} />
      <figcaption class="quiet small">{says}</figcaption>
    </figure>
  );
}
