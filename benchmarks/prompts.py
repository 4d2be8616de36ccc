"""Tasks whose answers repeat much of their prompt: what prompt lookup is for. Written here, before any was run.

Four summaries, four edits, four extractions; each is an instruction and a short text.
"""

from __future__ import annotations

REPEATING = {
    "summary: lighthouse": """Summarize the text in two sentences.

The lighthouse on Gull Rock was built in 1871 after three ships were lost in one winter. For ninety years a keeper
lived there with his family, and every evening he carried oil up the hundred and twelve steps to the lamp. In 1961 the
lamp was changed to an electric one, and the last keeper moved to the village. Today the lighthouse is a small museum,
and visitors may climb the hundred and twelve steps themselves.""",
    "summary: bees": """Summarize the text in two sentences.

Bees tell each other where flowers are by dancing. When a bee has found good flowers, she goes back to the hive and
walks in a figure of eight on the comb. The direction of her walk shows the direction of the flowers, measured from
the sun, and the length of her walk shows how far away the flowers are. The other bees follow her in the dark, feel
her movements, and then fly out to find the flowers.""",
    "summary: meeting": """Write a short summary of these meeting notes.

The school garden group met on Tuesday. Anna said that the water tank leaks and that a new tank costs 240 dollars.
Peter offered to repair the water tank with his brother on Saturday. The group agreed to wait for the repair before
buying a new tank. Maria will ask the parents for old garden tools. The group will meet again on the first Tuesday of
May.""",
    "summary: bread": """Summarize the text in two sentences.

Sourdough bread needs no yeast from a shop. The baker keeps a starter, a mixture of flour and water in which wild
yeast and bacteria live. A part of the starter goes into the dough, and the rest is fed with fresh flour and water
for the next day. The dough rises slowly, often for a whole night, and the slow rise gives sourdough bread its sour
taste and its firm crust.""",
    "edit: spelling": """Correct the spelling mistakes in the text. Write the whole corrected text and nothing else.

Last sumer we went to the montains with our frends. We slept in a small hut near a lake, and every morning we swam in
the cold watter. On the third day we climed the highest peak and saw the whole valey. In the evening we made a fire,
cooked soup, and told storys until the stars came out.""",
    "edit: name": """Rewrite the text and replace the name Tom with the name Oscar. Change nothing else.

Tom has a bakery on Mill Street. Tom gets up at three in the morning and bakes bread, rolls, and cakes. At six Tom
opens the door, and the first customers come in. On Sundays the bakery is closed, and Tom goes fishing with his
daughter. When they catch a fish, Tom fries it with butter and lemon.""",
    "edit: past tense": """Rewrite the text in the past tense.

The train leaves the station at noon. An old man sits at the window and reads a newspaper. A girl with a red hat
looks at the fields and counts the cows. At the second stop a musician gets on and plays the violin. The old man
folds his newspaper, the girl with the red hat claps her hands, and everybody in the carriage smiles.""",
    "edit: code": """Rename the variable x to total in this Python function. Write the whole function.

def average(numbers):
    x = 0
    for number in numbers:
        x = x + number
    if len(numbers) == 0:
        return 0
    x = x / len(numbers)
    return x
""",
    "extraction: dates": """List every event in the text with its date.

The bridge was planned on 4 March 1902. Work on the bridge began on 12 June 1903, and the first stone was laid on 1
July 1903. A flood damaged the bridge on 9 November 1904. The bridge was opened on 20 May 1906, and the first train
crossed it on 21 May 1906. It was painted red on 3 August 1931.""",
    "extraction: people": """List the name, the age, and the job of every person in the text.

At the long table sat Greta Holm, 34, a carpenter, next to Samuel Ortiz, 51, a doctor. Across from them Lin Wei, 28, a
teacher, talked to Amara Diallo, 45, a pilot. At the end of the table sat old Henrik Berg, 79, a retired sailor, and
his neighbor Rosa Conti, 62, a painter.""",
    "extraction: sentences": """Copy the sentences of the text that are about water.

The village lies in a dry valley. Water comes from a spring two miles away. A stone channel brings the water to the
square. The church has a tower with two bells. In August the spring gives less water, and the gardens are watered only
at night. The market is on Fridays. Every family may take forty buckets of water a day.""",
    "extraction: table": """Write this list as a table with the columns item, price, and stock.

There are 14 hammers at 12.50 dollars. There are 30 screwdrivers at 6.00 dollars. There are 8 saws at 19.90 dollars.
There are 22 paint brushes at 3.75 dollars. There are 5 ladders at 64.00 dollars. There are 17 tape measures at 8.20
dollars.""",
}
"""Name -> prompt."""
